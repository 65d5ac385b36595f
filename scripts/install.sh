#!/usr/bin/env bash
# install.sh PREFIX: builds the library in release mode and puts it where C and C++ programs look for it:
#   PREFIX/include/ictus.h, ictus.hpp
#   PREFIX/lib/libictus.so (with its version behind it), libictus.a
#   PREFIX/lib/pkgconfig/ictus.pc
#   PREFIX/lib/cmake/ictus/ictusConfig.cmake, ictusConfigVersion.cmake
# The files name no absolute path, so PREFIX may be moved afterwards. ICTUS_PROFILE=dev installs a debug build.
set -euo pipefail

if [ $# != 1 ] || [ -z "$1" ]; then
    echo "usage: $0 PREFIX" >&2
    exit 2
fi
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
major=${version%%.*}
case $(uname -s) in
    Darwin) shared=libictus.dylib ;;
    *) shared=libictus.so ;;
esac

# ICTUS_LIBRARY_DIR: where a build lies already, for tests.
built=${ICTUS_LIBRARY_DIR:-}
if [ -z "$built" ]; then
    profile=${ICTUS_PROFILE:-release}
    cargo build --lib --quiet --profile "$profile"
    target=${CARGO_TARGET_DIR:-target}
    [ "$profile" = dev ] && built=$target/debug || built=$target/$profile
fi

install -d "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/lib/cmake/ictus"
install -m 644 include/ictus.h include/ictus.hpp "$prefix/include/"
install -m 644 "$built/libictus.a" "$prefix/lib/"
install -m 755 "$built/$shared" "$prefix/lib/$shared.$version"
ln -sf "$shared.$version" "$prefix/lib/$shared.$major"
ln -sf "$shared.$version" "$prefix/lib/$shared"

fill() { sed -e "s|@VERSION@|$version|g" -e "s|@SHARED@|$shared|g" "$1" > "$2"; }
fill cmake/ictus.pc.in "$prefix/lib/pkgconfig/ictus.pc"
fill cmake/ictusConfig.cmake.in "$prefix/lib/cmake/ictus/ictusConfig.cmake"
fill cmake/ictusConfigVersion.cmake.in "$prefix/lib/cmake/ictus/ictusConfigVersion.cmake"
echo "ictus $version is in $prefix"
