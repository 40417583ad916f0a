# Sourced by the other scripts: says what is missing and installs it where that is possible.

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# lock FILE SECONDS WHAT: from now on descriptor 9 holds the lock on a file that only this user can open, so that no other user can
# hold it. WHAT is what another process is doing while it has the lock.
lock() {
    if [ -e "$1" ] || [ -L "$1" ]; then
        [ -f "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || die "$1 should be a lock file of this user: move it away"
        chmod 0600 "$1"
    fi
    (umask 077 && : >>"$1")
    exec 9<"$1"
    flock -w "$2" 9 || die "$3 for $2 seconds: see with \`fuser $1\` which process it is"
}

# below_start PATH: a path as it was meant where the command was started, before it went to the top.
started_in=${OLDPWD:-$PWD}
below_start() {
    case $1 in
    /*) echo "$1" ;;
    *) echo "$started_in/$1" ;;
    esac
}
# Cargo starts each test in its package.
[ -z "${CNIKIT_EVIDENCE:-}" ] || export CNIKIT_EVIDENCE="$(below_start "$CNIKIT_EVIDENCE")"

need_cargo() {
    [ -d "${HOME:-}/.cargo/bin" ] && PATH="$HOME/.cargo/bin:$PATH"
    command -v cargo >/dev/null || die "cargo is missing. Install Rust with rustup (https://rustup.rs), then run this again."
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "${BASH_SOURCE[0]%/*}/../Cargo.toml")
    found=$(cargo --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] ||
        die "Rust $found is too old: this needs $wanted or newer. \`rustup update\`, or rustup from https://rustup.rs, then run this again."
}

# release_target: what the plugins are released for. With musl a plugin starts in a third of the time that it takes with
# glibc, which asks the processor for its features one by one; where rustup cannot get it, the host's own serves.
release_target() {
    local host musl
    host=$(rustc -vV | sed -n 's/^host: //p')
    musl=${host/%-gnu/-musl}
    if has_std "$musl" || { command -v rustup >/dev/null && rustup target add "$musl" >&2 && has_std "$musl"; }; then
        echo "$musl"
    else
        echo "The target $musl is not to be had: the plugins are built for $host, just as static, and start more slowly." >&2
        echo "$host"
    fi
}
has_std() { compgen -G "$(rustc --print target-libdir --target "$1")/libstd-*.rlib" >/dev/null; }

# WORKSPACE: cargo's flags for what is built and tested together. The agent is apart: few need it, and with it every build has a TLS library,
# and other crates have its features. With $CNIKIT_WITH_AGENT it is among them, as in CI, which compiles what both use once instead of twice.
# AGENT: those for the agent.
WORKSPACE=(--workspace --exclude cnikit-agent)
AGENT=(--package cnikit-agent)
[ -z "${CNIKIT_WITH_AGENT:-}" ] || WORKSPACE=(--workspace) AGENT=(--workspace)

# need COMMAND PACKAGE: installs a Debian package for a command that is not there.
missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }

# What a static program is linked with: gcc alone does not bring it.
need_linker() {
    need cc gcc
    [ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
    [ -z "${CNIKIT_WITH_AGENT:-}" ] || need_protoc
}

# need_protoc: the compiler of protocol buffers, and the definitions that come with it, which Debian has in a package of their own.
need_protoc() {
    local protoc
    if ! protoc=$(command -v protoc); then
        missing+=(protobuf-compiler libprotobuf-dev)
    elif [ ! -e "${protoc%/bin/protoc}/include/google/protobuf/descriptor.proto" ]; then
        missing+=(libprotobuf-dev)
    fi
}

install_missing() {
    [ ${#missing[@]} -eq 0 ] && return
    say "installing: ${missing[*]}"
    command -v apt-get >/dev/null || die "please install: ${missing[*]}"
    local sudo=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "not root, and no sudo: please install ${missing[*]}"
        sudo=sudo
    fi
    # Another installation, of an unattended upgrade for one, holds dpkg's lock for minutes at most.
    $sudo apt-get -o DPkg::Lock::Timeout=600 update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# namespaces: unshare's flags for a network, mounts and, where the machine allows it, processes of our own; as root of a
# user namespace where we are not root. Whatever happens, even Ctrl-C, goes away with them.
namespaces() {
    local flags=(--net --mount)
    [ "$(id -u)" = 0 ] || flags+=(--map-root-user)
    unshare "${flags[@]}" true || die "This machine allows no user namespaces: run this as root."
    if unshare "${flags[@]}" --pid --fork mount -t proc proc /proc 2>/dev/null; then
        flags+=(--pid --mount-proc)
    fi
    echo "${flags[*]} --fork --kill-child"
}

# The first thing to do in them: nothing of the host's is seen through /run, what is kept in /var/lib/cni, or in /var/lib/cnikit where a
# plugin cannot use /run, goes with them, and there is a loopback.
settle_in() {
    mount -t tmpfs tmpfs /run
    private_below /var/lib cni cnikit
    mount_netns_directory
    ip link set lo up
    # That of a version manager is a script, which takes twenty times as long to start.
    local python3
    if [ -x /usr/bin/python3 ] && python3=$(command -v python3) && [ "$python3" != /usr/bin/python3 ]; then
        mount --bind /usr/bin/python3 "$python3"
    fi
}

# check_documentation CARGO'S FLAGS...: warnings of rustdoc(1) are errors. It writes no pages: those of so many crates take it as long again.
check_documentation() {
    RUSTDOC=$PWD/scripts/rustdoc-check RUSTDOCFLAGS='-D warnings' cargo doc "$@" --no-deps --locked --document-private-items
}

# mount_netns_directory: as the first `ip netns add` makes it. Otherwise that of one test would appear in the snapshots of another.
mount_netns_directory() {
    mkdir -p /run/netns
    mount --bind /run/netns /run/netns
    mount --make-shared /run/netns
}

# reaping COMMAND...: runs it below this shell. The first process of a PID namespace has to reap, among others, the children that wait
# for the kernel after a DEL.
reaping() {
    local status=0
    "$@" || status=$?
    exit "$status"
}

# private_below DIR NAME...: what is in the directory is seen as it is, except for each NAME; what is made beside it is made in memory. So
# the machine needs no mount point of these names.
private_below() {
    local dir=$1 hidden=" ${*:2} " real entry name
    real=$(mktemp -d /run/real.XXXXXX)
    mount --rbind "$dir" "$real"
    mount -t tmpfs -o mode=0755 tmpfs "$dir"
    for entry in "$real"/* "$real"/.[!.]*; do
        name=${entry##*/}
        [[ $hidden != *" $name "* ]] || continue
        if [ -L "$entry" ]; then
            cp -P "$entry" "$dir/$name"
        elif [ -d "$entry" ]; then
            mkdir "$dir/$name"
            mount --rbind "$entry" "$dir/$name"
        elif [ -e "$entry" ]; then
            : >"$dir/$name"
            mount --bind "$entry" "$dir/$name"
        fi
    done
    umount --lazy "$real"
    rmdir "$real"
}

# crate_tool NAME VERSION [CARGO'S FLAGS...]: sets $tool to the directory of a program of crates.io. It is compiled once a machine, without
# optimisation: it runs for seconds. crates.io says which sources its lock file means.
crate_tool() {
    local home=$CACHE/$1-$2 new
    tool=$home/bin
    [ -x "$tool/$1" ] && return
    say "building: $1 $2"
    need_cache
    new=$(mktemp -d "$CACHE/$1-XXXXXX")
    # From another directory: this one's .cargo/config.toml is about plugins.
    (cd / && CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --no-track --version "$2" --root "$new" \
        --target-dir "$new/target" "${@:3}" "$1") || { rm -rf "$new" && return 1; }
    rm -rf "$new/target" "$home"
    strip "$new/bin/$1" 2>/dev/null || :
    mv -T "$new" "$home"
}

# workspace_version: the version that all crates have.
workspace_version() { sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "${BASH_SOURCE[0]%/*}/../Cargo.toml"; }

# source_date, source_revision: of the commit that is built, for files that are the same whenever they are made.
source_date() { echo "${SOURCE_DATE_EPOCH:-$(of_commit %ct || echo 0)}"; }
source_revision() { of_commit %H || echo unknown; }
of_commit() {
    local top
    top=$(realpath "${BASH_SOURCE[0]%/*}/..")
    git -c safe.directory="$top" -C "$top" log -1 --format="$1" 2>/dev/null
}

# pack_tar DIR OUT [FIRST...]: all files below a directory, FIRST before the others, as root's and of the time of the commit; two files
# with the same content stay two.
pack_tar() {
    (cd "$1" && { for file in "${@:3}"; do echo "./$file"; done && find . -mindepth 1 | LC_ALL=C sort; } |
        awk '!seen[$0]++' >"$2.list" &&
        tar --create --file "$2" --format=ustar --no-recursion --hard-dereference --owner=0 --group=0 --numeric-owner \
            --mode=u=rwX,go=rX --mtime="@$(source_date)" --files-from "$2.list")
    rm "$2.list"
}

# with_evidence COMMAND...: runs it, and shows the lines of its campaigns (tried, survived, found) once more at its end.
# CNIKIT_EVIDENCE names a file that gets them too, after those of other runs.
with_evidence() {
    local status=0 kept=${CNIKIT_EVIDENCE:-} lines
    lines=$(mktemp)
    CNIKIT_EVIDENCE=$lines "$@" || status=$?
    if [ -s "$lines" ]; then
        say "$(grep -c '' "$lines") campaigns"
        sort "$lines"
        [ -z "$kept" ] || sort "$lines" >>"$kept"
    fi
    rm -f "$lines"
    return "$status"
}

# only_ours DIR: it is a directory of this user, no other user can write in it or put another one in its place.
only_ours() {
    [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] &&
        [ -z "$(find "$1" -maxdepth 0 -perm /022)" ] &&
        [ -z "$(find "$(dirname "$1")" -maxdepth 0 -perm /022 ! -perm -1000)" ]
}

# Where what is unpacked and never installed is kept: kernels, other releases of upstream. Programs in it are run, so a
# directory that another user may have made or can change is not used: then it is one in this user's own cache.
CACHE=${CNIKIT_CACHE:-/var/tmp/cnikit}
if { [ -e "$CACHE" ] || [ -L "$CACHE" ]; } && ! only_ours "$CACHE"; then
    echo "$CACHE is not used: another user owns it or can write there" >&2
    CACHE=${XDG_CACHE_HOME:-${HOME:-/var/tmp/cnikit-$UID}/.cache}/cnikit
    echo "used instead: $CACHE" >&2
fi
export CNIKIT_CACHE=$CACHE # the tests read it

# What has to be called before anything is put there. If another user makes it first, it is not used.
need_cache() {
    mkdir -p "$(dirname "$CACHE")"
    mkdir -m 0700 "$CACHE" 2>/dev/null || only_ours "$CACHE" ||
        die "$CACHE: another user owns it or can write there. Set CNIKIT_CACHE to a directory of your own"
}

listed=' ' # the suites whose lists are here
# ask_archive SUITE [src]: $options let apt ask for another suite of the archive that this machine installs from, or for its
# sources; the lists are fetched once for all packages, for they are much larger than any of them. foreign=ARCH asks for the packages of
# another architecture.
ask_archive() {
    local suite=$1 kind=deb${2:+-$2} lists="$CACHE/apt/$1${2:+-$2}${foreign:+-$foreign}" uri
    uri=$(. /etc/os-release; apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
        awk -v own="$VERSION_CODENAME" '$2 == own { print $1; exit }')
    [ -n "$uri" ] || die "no archive of $suite is known here: no source of this machine is Debian's own release"
    need_cache
    mkdir -p "$lists/lists/partial"
    echo "$kind $uri $suite main" >"$lists/sources.list"
    options=(-o Dir::Etc::SourceList="$lists/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$lists/lists" -o Dir::State::Status=/dev/null -o APT::Sandbox::User=root -q=2)
    [ -z "${foreign:-}" ] || options+=(-o APT::Architecture="$foreign" -o APT::Architectures="$foreign")
    if [[ $listed != *" $lists "* ]]; then
        apt-get "${options[@]}" update
        listed+="$lists "
    fi
}

# unpack_deb SUITE PACKAGE DIR: a Debian package, or several with spaces between, unpacked from another suite. A directory that is complete
# is left alone.
unpack_deb() {
    local suite=$1 package=$2 dir=$3 options
    need_cache
    [ -e "$dir/.complete" ] && return
    command -v apt-get >/dev/null || die "please unpack $package of Debian's $suite into $dir, and touch $dir/.complete"
    say "unpacking: $package of $suite"
    ask_archive "$suite"
    rm -rf "$dir" "$dir.new"
    mkdir -p "$dir.new"
    # shellcheck disable=SC2086 # words, each a package
    (cd "$dir.new" && apt-get "${options[@]}" download $package && for deb in ./*.deb; do dpkg-deb -x "$deb" . && rm "$deb"; done)
    touch "$dir.new/.complete"
    mv "$dir.new" "$dir"
}

# The plugins of upstream, to compare with: the release that this machine would install, and the newest one.
need_reference() {
    [ -x /usr/lib/cni/host-local ] || missing+=(containernetworking-plugins)
    need xz xz-utils
}
unpack_reference() { unpack_deb sid containernetworking-plugins "$CACHE/reference"; }

# The last release of upstream that had a flannel, 0.9.0: in $CACHE/reference-flannel, among the newest release's others,
# to which it delegates.
unpack_flannel() {
    unpack_reference
    unpack_deb bullseye containernetworking-plugins "$CACHE/reference-0.9"
    mkdir -p "$CACHE/reference-flannel"
    ln -sfr "$CACHE/reference/usr/lib/cni"/* "$CACHE/reference-0.9/usr/lib/cni/flannel" "$CACHE/reference-flannel"
}

# The cnitool of upstream, with its libcni: no package brings it, but the source of its newest release does. It wants a Go that
# Debian's own release may not have; both go again, and the one static program stays, in $CACHE/reference-tool.
build_reference_tool() {
    local dir="$CACHE/reference-tool" go="$CACHE/go" path=src/github.com/containernetworking/cni options
    need_cache
    [ -e "$dir/.complete" ] && return
    command -v apt-get >/dev/null || die "please build the cnitool of github.com/containernetworking/cni 1.3.0 into $dir, and touch $dir/.complete"
    command -v xz >/dev/null || die "please install xz-utils"
    unpack_deb bookworm-backports "golang-1.22-go golang-1.22-src" "$go"
    say "building: upstream's cnitool"
    ask_archive sid src
    rm -rf "$dir" "$dir.new"
    mkdir -p "$dir.new/$path"
    (cd "$dir.new" && apt-get "${options[@]}" source --download-only --tar-only golang-github-appc-cni &&
        tar -xf ./*.orig.tar.* --strip-components=1 -C "$path")
    GOROOT=$go/usr/lib/go-1.22 GOPATH=$dir.new GOCACHE=$dir.new/built GOTOOLCHAIN=local GO111MODULE=off CGO_ENABLED=0 GOFLAGS= \
        "$go/usr/lib/go-1.22/bin/go" build -trimpath -o "$dir.new/cnitool" "${path#src/}/cnitool"
    rm -rf "$go" "$dir.new/src" "$dir.new/built" "$dir.new"/*.tar.*
    touch "$dir.new/.complete"
    mv "$dir.new" "$dir"
}

# build_release COMMIT: the plugins and cnitool of a commit of this repository, under their names in $CACHE/release-COMMIT. A clone
# without its history has not got that commit: then the tests that need it are reported as not run.
build_release() {
    local commit=$1 dir="$CACHE/release-$1" name
    need_cache
    [ -e "$dir/.complete" ] && return
    if ! git -c safe.directory="$PWD" cat-file -e "$commit^{commit}" 2>/dev/null; then
        echo "this clone has not got commit $commit: fetch the whole history to test the change of releases" >&2
        return
    fi
    say "building: the plugins and cnitool of $commit"
    rm -rf "$dir" "$dir.new"
    mkdir -p "$dir.new/source"
    git -c safe.directory="$PWD" archive "$commit" | tar -x -C "$dir.new/source"
    cp rust-toolchain.toml "$dir.new/source" # older commits have none
    # Not optimized, which is faster in all: older commits optimize dependencies.
    (cd "$dir.new/source" && CARGO_PROFILE_DEV_DEBUG=0 cargo build --locked --config 'profile.dev.package."*".opt-level=0' \
        --target-dir "$dir.new/built" -p cni-plugins -p cnitool)
    mv "$dir.new"/built/*/debug/{cni-plugins,cnitool} "$dir.new"
    for name in $("$dir.new/cni-plugins" --list); do ln "$dir.new/cni-plugins" "$dir.new/$name"; done
    rm -rf "$dir.new/source" "$dir.new/built"
    touch "$dir.new/.complete"
    mv "$dir.new" "$dir"
}

# Container runtimes that drive the plugins: those of this machine's release, and the newest containerd; what their tests call.
need_runtimes() {
    need busybox busybox-static
    need containerd containerd
    need curl curl
    need newuidmap uidmap
    need podman podman
    need runc runc
    need slirp4netns slirp4netns
}
unpack_runtimes() { unpack_deb sid containerd "$CACHE/containerd"; }

# The kernels of virtual machines (VM_KERNEL of scripts/vm), which have what many machines' kernels lack, and 9p: the release of
# Debian that has each. 6.12 is the one that is meant if nothing is said.
declare -A kernel_suites=([5.10]=bullseye [6.1]=bookworm [6.12]=bookworm-backports [newest]=sid)
kernel_directory() { echo "$CACHE/kernel-$1"; }
unpack_kernel() {
    local suite=${kernel_suites[$1]:-}
    [ "$suite" ] || die "no kernel $1: there are ${!kernel_suites[*]}"
    unpack_image "$suite" amd64 "$(kernel_directory "$1")"
}

# unpack_image SUITE ARCH DIR: the newest kernel of a suite with its modules, which are in packages of their own, and below /usr/lib, since 7.2.
unpack_image() {
    local suite=$1 dir=$3 image parts options
    [ -e "$dir/.complete" ] && [ -e "$dir/lib" ] && return
    ask_archive "$suite"
    image=$(depends_on "linux-image-$2" 'linux-image-')
    parts=$(depends_on "$image" 'linux-(base|binary|modules)-')
    unpack_deb "$suite" "$image $parts" "$dir"
    [ -e "$dir/lib" ] || ln -s usr/lib "$dir/lib"
}
depends_on() { apt-cache "${options[@]}" depends "$1" | awk -v wanted="^$2" '$1 == "Depends:" && $2 ~ wanted { print $2 }' | paste -sd ' '; }

# build_auxiliary KERNEL: the module of tests/auxiliary for that kernel, in $auxiliary. That needs Debian's headers of exactly its release,
# and the archive has those of its newest kernel only: an older kernel in the cache is replaced.
need_auxiliary() {
    need make make
    need x86_64-linux-gnu-gcc-12 gcc-12
}
build_auxiliary() {
    local kernel=$1 dir release built source=${BASH_SOURCE[0]%/*}/../tests/auxiliary
    dir=$(kernel_directory "$kernel")
    need_cache
    lock "$CACHE/.lock" 3600 "another machine has been prepared"
    unpack_kernel "$kernel"
    release=$(basename "$dir"/lib/modules/*)
    if ! unpack_headers "$kernel" "$release"; then
        say "the archive has no headers of $release: getting its kernel of today"
        rm -rf "$dir"
        unpack_kernel "$kernel"
        release=$(basename "$dir"/lib/modules/*)
        unpack_headers "$kernel" "$release"
    fi
    built=$CACHE/auxiliary-$release-$(cat "$source"/* | sha256sum | cut -c 1-16)
    auxiliary=$built/cnikit_auxiliary.ko
    if [ ! -e "$auxiliary" ]; then
        say "building: the module of tests/auxiliary"
        local headers=$CACHE/headers-$release/usr/src
        rm -rf "$built.new" && cp -rT "$source" "$built.new"
        make -s -C "$headers/linux-headers-$release" -f "$headers/linux-headers-${release%-*}-common/Makefile" \
            M="$built.new" CONFIG_DEBUG_INFO_BTF_MODULES= modules
        rm -rf "$built" && mv "$built.new" "$built"
    fi
    exec 9<&-
}
# A process of its own, for it may fail.
unpack_headers() { bash -euo pipefail -c '. "$0" && unpack_headers_of "$@"' "${BASH_SOURCE[0]}" "$@"; }
# unpack_headers_of KERNEL RELEASE: with the tools that they were built with, whose package older kernels share with other releases.
unpack_headers_of() {
    local suite=${kernel_suites[$1]} headers=linux-headers-$2 dir=$CACHE/headers-$2 options
    [ ! -e "$dir/.complete" ] || return 0
    ask_archive "$suite"
    unpack_deb "$suite" "$headers ${headers%-*}-common $(depends_on "$headers" linux-kbuild-)" "$dir"
}

# firewalld, and a bus for it. It is unpacked and not installed: an installation starts it, on a machine whose network is none
# of ours. What it imports brings no service.
need_firewalld() {
    need dbus-daemon dbus-daemon
    need python3 python3
    local module
    for module in dbus gi nftables; do
        [ -e "/usr/lib/python3/dist-packages/$module" ] || missing+=("python3-$module")
    done
}
unpack_firewalld() { unpack_deb bookworm "firewalld python3-firewall" "$CACHE/firewalld"; }

# etcd and its tool, in front of $PATH. They are unpacked and not installed: an installation starts a server.
unpack_etcd() {
    unpack_deb bookworm "etcd-server etcd-client" "$CACHE/etcd"
    PATH=$CACHE/etcd/usr/bin:$PATH
}

# built_program NAME: builds the programs of the workspace, and prints the path of one. With the examples, whose dependencies are those of
# tests, they have the features that `scripts/test` builds them with: `--bin NAME` alone would compile half of the crates anew.
built_program() {
    cargo build "${WORKSPACE[@]}" --bins --examples --locked --message-format json-render-diagnostics |
        sed -n 's|.*"executable":"\([^"]*/'"$1"'\)".*|\1|p'
}

# build_to_measure DIR [debug]: the plugins as they are installed, in DIR/bin, those of the floor in DIR/floor, and in $bench what
# measures them; `debug`: the one that `scripts/test` builds. They are built one by one, for what is built together has the features of
# all, and is not what is installed.
build_to_measure() {
    local built=${CNIKIT_BUILT:-} floor
    bench=$built/cnikit-bench
    floor=$built/cnikit-floor
    if [ -z "$built" ]; then
        need_cargo
        say "building"
        local of_target harness
        built=$(scripts/install --build)
        of_target=${built%/*}
        cargo build --release --no-default-features --locked --target "${of_target##*/}" -p cnikit-bench
        floor=$of_target/release/cnikit-floor
        if [ "${2:-}" = debug ]; then
            harness=$(built_program cnikit-bench)
        else
            cargo build --profile harness --locked --target "${of_target##*/}" -p cnikit-bench --bin cnikit-bench
            harness=$of_target/harness/cnikit-bench
        fi
        mkdir "$1/harness"
        cp "$harness" "$of_target/release/cnikit-weigh" "$1/harness"
        bench=$1/harness/cnikit-bench
        # A launcher is known by its size, so it has no symbols.
        if [ "${CNIKIT_SYMBOLS:-}" ]; then strip "$built/cni-launcher"; fi
    fi
    CNIKIT_BUILT=$built scripts/install "$1/bin" "$1/tool" >/dev/null
    mkdir "$1/floor"
    cp "$floor" "$1/floor/bridge"
    local name
    for name in ptp macvlan host-local bandwidth sbr; do ln "$1/floor/bridge" "$1/floor/$name"; done
    # The installer writes each file at once, so the kernel caches it in large pieces and maps more of it than is used, which counts as
    # resident memory. Those of upstream were written in small pieces, by dpkg: so are these.
    local file
    for file in "$1"/bin/* "$1"/tool/*; do
        [ -f "$file" ] || continue
        cp "$file" "$1/copy"
        mv -T "$1/copy" "$file"
    done
}

# Debian of arm64, in $CACHE/arm64: what the plugins and scripts/life call, unpacked and not configured; and its kernel.
unpack_arm64() {
    local foreign=arm64 dir=$CACHE/arm64 name options
    unpack_image bookworm-backports arm64 "$CACHE/kernel-arm64"
    [ ! -e "$dir/.complete" ] || return 0
    ask_archive bookworm
    say "unpacking: Debian's programs for arm64"
    rm -rf "$dir" "$dir.new"
    mkdir -p "$dir.new"/{debs/partial,dev,proc,sys,run,tmp,var/lib,mnt}
    apt-get "${options[@]}" -o Dir::Cache::archives="$dir.new/debs" -o Debug::NoLocking=true --download-only --no-install-recommends -y \
        install bash busybox-static conntrack coreutils diffutils dnsmasq-base findutils grep iproute2 iptables iputils-ping kmod mount \
        nftables procps sed tar util-linux
    for name in "$dir.new"/debs/*.deb; do dpkg-deb -x "$name" "$dir.new"; done
    rm -r "$dir.new/debs"
    echo root:x:0:0:root:/:/bin/bash >"$dir.new/etc/passwd" # dnsmasq asks for its user
    echo root:x:0: >"$dir.new/etc/group"
    # What the installation of iptables does.
    for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
        ln -s xtables-nft-multi "$dir.new/usr/sbin/$name"
    done
    touch "$dir.new/.complete"
    mv "$dir.new" "$dir"
}

# A small Debian, in $CACHE/debian: packages are installed in copies of it. $CACHE/debian-packages has the plugins of upstream as
# packages of this release and of the newest.
need_debian_root() { need debootstrap debootstrap; }
unpack_debian_root() {
    local dir=$CACHE/debian packages=$CACHE/debian-packages suite options
    need_cache
    if [ ! -e "$dir/.complete" ]; then
        ask_archive bookworm
        say "unpacking: a Debian of bookworm"
        rm -rf "$dir" "$dir.new"
        # shellcheck disable=SC2154 # ask_archive sets it
        debootstrap --variant=minbase bookworm "$dir.new" "$(awk '{ print $2 }' "$CACHE/apt/bookworm/sources.list")" >"$CACHE/debian.log" 2>&1 ||
            die "debootstrap failed: $(tail -n 3 "$CACHE/debian.log")"
        rm -rf "$dir.new"/var/cache/apt/archives/*.deb "$dir.new"/var/lib/apt/lists/* "$CACHE/debian.log"
        touch "$dir.new/.complete"
        mv "$dir.new" "$dir"
    fi
    for suite in bookworm sid; do
        [ ! -e "$packages/$suite.deb" ] || continue
        ask_archive "$suite"
        mkdir -p "$packages/new"
        (cd "$packages/new" && apt-get "${options[@]}" download containernetworking-plugins && mv ./*.deb "../$suite.deb")
        rmdir "$packages/new"
    done
}
