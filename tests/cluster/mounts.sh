# shellcheck shell=bash
# Sourced by the first process of a mount namespace: covers what the cluster would otherwise write on the host.

# The hierarchies again, beginning at this cgroup namespace's root, so that a kubelet's /kubepods is below it.
own_cgroups() {
    umount -R /sys/fs/cgroup
    if [[ $(wc -l </proc/self/cgroup) == 1 ]]; then
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        return
    fi
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    local controllers folder
    while IFS=: read -r _ controllers _; do
        folder=/sys/fs/cgroup/${controllers#name=}
        case $controllers in
        '') folder=/sys/fs/cgroup/unified && mkdir "$folder" && mount -t cgroup2 cgroup2 "$folder" ;;
        name=*) mkdir "$folder" && mount -t cgroup -o "none,$controllers" cgroup "$folder" ;;
        *) mkdir "$folder" && mount -t cgroup -o "$controllers" cgroup "$folder" ;;
        esac
    done </proc/self/cgroup
}

# Folders that everything writes into. $1: where what must be on a disk goes.
own_folders() {
    mount -t tmpfs -o mode=755 tmpfs /run
    mount -t tmpfs -o mode=755 tmpfs /var/lib
    mount -t tmpfs -o mode=755 tmpfs /var/log
    # A pod's hostPath of type DirectoryOrCreate makes folders in the host's /etc, for all nodes.
    mkdir -p "$1/etc" "$1/etc.work"
    mount -t overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/etc.work" overlay /etc
}

# own_file PATH CONTENT KEEP: a file of the host, or of the kernel, that this namespace sees with other content.
own_file() {
    [[ -e $1 ]] || return 0
    local copy=$3/${1//\//_}
    [[ -e $copy ]] || printf '%s\n' "$2" >"$copy"
    mount --bind "$copy" "$1"
}
