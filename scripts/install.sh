#!/bin/sh
# install.sh PREFIX [--no-build] [--library-dir DIR]: what C and C++ programs need to link ictus, below PREFIX:
#   include/ictus.h, ictus.hpp, and the parts of the latter in include/ictus
#   lib/libictus.so -> libictus.so.0.MINOR (from 1.0 on: libictus.so.MAJOR) -> libictus.so.VERSION, lib/libictus.a
#   lib/pkgconfig/ictus.pc
#   lib/cmake/ictus/ictusConfig.cmake, ictusConfigVersion.cmake
#   bin/ictus-worker, where it was built: the engine in a process of its own, whose tokenizer library is lib/libictus.so
# Builds the release libraries first; --no-build takes those that lie in DIR (target/release when not named). DESTDIR is put before
# PREFIX, as packagers expect. Nothing in what is installed names PREFIX: it may be moved. May be run again. Linux only.
set -eu

usage() {
    echo "usage: $0 PREFIX [--no-build] [--library-dir DIR]" >&2
    exit 2
}
fail() {
    echo "$0: $*" >&2
    exit 1
}
absolute() {
    case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$start/$1" ;;
    esac
}

start=$PWD
prefix= library_dir= build=yes
while [ $# -gt 0 ]; do
    case $1 in
    --no-build) build= ;;
    --library-dir)
        [ $# -ge 2 ] && [ -n "$2" ] || usage
        library_dir=$(absolute "$2")
        shift
        ;;
    -*) usage ;;
    *)
        [ -n "$1" ] && [ -z "$prefix" ] || usage
        prefix=$(absolute "$1")
        ;;
    esac
    shift
done
[ -n "$prefix" ] || usage
[ -z "$library_dir" ] || [ -z "$build" ] || fail "--library-dir goes with --no-build"
[ "$(uname -s)" = Linux ] || fail "the links and names are those of Linux"
cd "$(dirname "$0")/.."

# The first version in Cargo.toml is the package's.
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
major=${version%%.*}
minor=${version#*.}
minor=${minor%%.*}
# Minor versions below 1.0 may differ, so each has a name of its own.
case $major in
    0) soname=libictus.so.0.$minor ;;
    *) soname=libictus.so.$major ;;
esac

# What std and the crates under it call; rustc lists it (--print native-static-libs).
system_libraries="gcc_s util rt pthread m dl c"

if [ -n "$build" ]; then
    # Cargo says where the library lies, whatever its configuration.
    library=$(cargo build --release --lib --bins --locked --message-format=json-render-diagnostics |
        sed -n 's/.*"\([^"]*\/libictus\.so\)".*/\1/p' | tail -n 1)
    [ -n "$library" ] || fail "cargo built no shared library"
    library_dir=$(dirname "$library")
fi
[ -n "$library_dir" ] || library_dir=$PWD/target/release
for file in libictus.so libictus.a; do
    [ -f "$library_dir/$file" ] || fail "no $file in $library_dir"
done

root=${DESTDIR:-}$prefix

# put FILE PLACE MODE: a copy of FILE at PLACE below the root. A program that runs with the old one keeps it.
put() {
    install -m "$3" "$1" "$root/$2"
    echo "$root/$2"
}
# link TARGET PLACE
link() {
    ln -sfn "$1" "$root/$2"
    echo "$root/$2 -> $1"
}
# fill TEMPLATE PLACE
fill() {
    sed -e "s/@VERSION@/$version/g" -e "s/@VERSION_MAJOR@/$major/g" -e "s/@VERSION_MINOR@/$minor/g" -e "s/@SONAME@/$soname/g" \
        -e "s/@SYSTEM_LIBRARY_FLAGS@/$(printf -- '-l%s ' $system_libraries | sed 's/ $//')/g" \
        -e "s/@SYSTEM_LIBRARY_LIST@/$(echo "$system_libraries" | tr ' ' ';')/g" "packaging/$1.in" >"$filled"
    put "$filled" "$2" 644
}

filled=$(mktemp)
trap 'rm -f "$filled"' EXIT
umask 022
mkdir -p "$root/include/ictus" "$root/lib/pkgconfig" "$root/lib/cmake/ictus"

put include/ictus.h include/ictus.h 644
put include/ictus.hpp include/ictus.hpp 644
for header in include/ictus/*.hpp; do
    put "$header" "$header" 644
done
put "$library_dir/libictus.so" "lib/libictus.so.$version" 755
link "libictus.so.$version" "lib/$soname"
link "$soname" lib/libictus.so
put "$library_dir/libictus.a" lib/libictus.a 644
if [ -f "$library_dir/ictus-worker" ]; then
    mkdir -p "$root/bin"
    put "$library_dir/ictus-worker" bin/ictus-worker 755
fi
fill ictus.pc lib/pkgconfig/ictus.pc
fill ictusConfig.cmake lib/cmake/ictus/ictusConfig.cmake
fill ictusConfigVersion.cmake lib/cmake/ictus/ictusConfigVersion.cmake
