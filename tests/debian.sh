# shellcheck shell=bash
# Helpers of the test scripts: Debian packages without touching this system's own apt, and a cache outside the tree.
# Sourced, not run. What a script tells its user goes to stderr, so that stdout can carry an answer.

say() { printf '%s: %s\n' "${me:-tests}" "$*" >&2; }
die() { say "$*"; exit 1; }

# cache_name PREFIX TEXT: the cache folder for what TEXT (the recipe and its inputs) describes.
cache_name() {
    local key
    key=$(printf '%s' "$2" | sha256sum | cut -c1-16)
    printf '%s/gdr-agent/%s-%s\n' "${XDG_CACHE_HOME:-$HOME/.cache}" "$1" "$key"
}

# cached DIR COMMAND…: makes DIR by running COMMAND NEWDIR under a lock, unless it is there already.
# DIR appears whole or not at all; what an interrupted run left behind is removed by the next one.
cached() {
    local dir=$1 lock
    shift
    [ -d "$dir" ] && return 0
    mkdir -p "$(dirname "$dir")"
    exec {lock}>"$dir.lock"
    if ! flock -n "$lock"; then
        say "another run is filling $dir: waiting for it (15 minutes at most)"
        flock -w 900 "$lock" || die "the other run has not finished: see who holds $dir.lock"
    fi
    if [ ! -d "$dir" ]; then
        rm -rf "$dir.new"
        mkdir "$dir.new"
        if ! ("$@" "$dir.new"); then
            rm -rf "$dir.new"
            die "could not make $dir (see above); nothing was kept"
        fi
        mv "$dir.new" "$dir"
    fi
    exec {lock}>&-
}

# need COMMAND…: says which of the commands this machine lacks.
need() {
    local c missing=()
    for c; do command -v "$c" >/dev/null || missing+=("$c"); done
    [ ${#missing[@]} -eq 0 ] || die "not on this machine: ${missing[*]}"
}

# The archive that this system installs from, as apt knows it.
debian_uri() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -m1 '/debian/*$' ||
        die "apt has no Debian archive among its sources: this needs a Debian system"
}

# debian_sources DIR "SUITE COMPONENT…" …: a private apt in DIR (lists, cache), with the archive this system uses.
debian_sources() {
    local dir=$1 uri line keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    shift
    [ -r $keyring ] || die "no $keyring: install debian-archive-keyring"
    uri=$(debian_uri)
    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
    for line; do echo "deb [signed-by=$keyring] $uri $line"; done >"$dir/sources.list"
    debian_apt "$dir" -qq update || die "apt could not read ${*} at $uri"
}

# debian_apt DIR ARGUMENT…: apt-get on that private configuration.
debian_apt() {
    local dir=$1
    shift
    apt-get -o Dir::Etc::sourcelist="$dir/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root \
        -o Acquire::Retries=3 -o Acquire::Languages=none -o APT::Get::List-Cleanup=false "$@"
}

# debian_unpack DIR ROOT PACKAGE…: downloads the packages by the private apt in DIR and unpacks them into ROOT,
# where .versions lists what came.
debian_unpack() {
    local dir=$1 root=$2 deb
    shift 2
    mkdir -p "$dir/deb" "$root"
    (cd "$dir/deb" && debian_apt "$dir" -qq download "$@") || die "apt could not download: $*"
    for deb in "$dir"/deb/*.deb; do
        dpkg-deb -x "$deb" "$root"
        dpkg-deb -W --showformat '${Package} ${Version}\n' "$deb" >>"$root/.versions"
    done
    rm -rf "$dir/deb"
}

# debian_install PACKAGE…: installs those that this system lacks.
debian_install() {
    local p missing=()
    command -v dpkg-query >/dev/null || die "no dpkg here: install by hand what these Debian packages hold: $*"
    for p; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    [ "$(id -u)" = 0 ] || die "packages are missing, and only root can install them: apt-get install ${missing[*]}"
    say "installing ${missing[*]} (about 15 seconds)"
    local try
    for try in 1 2 3 4 5 6; do
        if DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
            "${missing[@]}" >/dev/null; then
            return 0
        fi
        # Another apt may hold the lists, or the lists may be older than the archive.
        apt-get -qq update || sleep $((try * 5))
    done
    die "apt-get could not install ${missing[*]}"
}
