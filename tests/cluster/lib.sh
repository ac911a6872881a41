# shellcheck shell=bash
# What the cluster's scripts share. Sourced; sets strict mode.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# Clusters keep their state here, one folder each: on a disk (images are unpacked into it), not below anything
# that a cluster covers (/run, /var/lib, /var/log, /etc).
clusters=${GDR_CLUSTERS:-/var/tmp/gdr-agent-clusters}

say() { printf '%s\n' "$*" >&2; }
die() { say "cluster: $*"; exit 1; }

# wait_for SECONDS WHAT COMMAND...: polls until COMMAND succeeds.
wait_for() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || { say "cluster: gave up waiting for $what"; return 1; }
        sleep 0.1
    done
}

# Runs COMMAND while no other script makes or removes a cluster.
exclusively() {
    mkdir -p "$clusters"
    (
        flock 7
        "$@" 7>&-
    ) 7>"$clusters/lock"
}

alive() { [[ -e $1/lock ]] && ! flock -n "$1/lock" true; }

# Ends what is left of a cluster and removes its folders. Its processes normally died with their namespace's
# pid 1; the cgroups also give away those of a cluster whose harness was killed before that could be arranged.
remove() {
    local state=$1 group pid left
    if [[ -s $state/unshare.pid ]] && alive "$state"; then
        kill -9 "$(<"$state/unshare.pid")" 2>/dev/null || true
    fi
    if [[ -e $state/cgroups ]]; then
        while read -r group; do
            [[ -d $group ]] || continue
            for _ in {1..100}; do
                left=
                # (Files in a cgroup file system have size 0: only reading shows what is in one.)
                while read -r pid; do
                    left=yes
                    kill -9 "$pid" 2>/dev/null || true
                done < <(find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null)
                [[ -n $left ]] || break
                sleep 0.05
            done
            find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
            rmdir "$(dirname "$group")" 2>/dev/null || true # gdr-test itself, after the last
        done <"$state/cgroups"
    fi
    for _ in {1..20}; do
        rm -rf "$state" 2>/dev/null && return
        sleep 0.1
    done
    say "cluster: could not remove all of $state"
}

# Removes every cluster that nothing holds any more.
sweep_dead() {
    local state
    for state in "$clusters"/*/; do
        state=${state%/}
        [[ -d $state ]] && ! alive "$state" || continue
        say "cluster: removing what a killed run left in $state"
        remove "$state"
    done
}
