# shellcheck shell=bash
# Sourced by deps and boot.

# copy_with_libraries ROOT FILE…: the files, and the libraries that they need, at the same real paths in ROOT.
copy_with_libraries() {
    local root=$1 file real
    shift
    { printf '%s\n' "$@"; ldd "$@" 2>/dev/null | grep -v ':$' | grep -o '/[^ ]*' || true; } | sort -u | while read -r file; do
        real=$(readlink -f "$file")
        mkdir -p "$root$(dirname "$real")"
        [ -e "$root$real" ] || cp "$real" "$root$real"
        # The name that the loader asks for, which is a link more often than not.
        [ "$(basename "$file")" = "$(basename "$real")" ] ||
            ln -sfn "$(basename "$real")" "$root$(dirname "$real")/$(basename "$file")"
    done
}
