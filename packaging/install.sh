#!/bin/sh
# install.sh BUILT MANIFEST: puts what was built into BUILT in place below $DESTDIR$PREFIX, and lists it in MANIFEST: files,
#   then the folders that were not there before, inner ones first, each with a / behind it.
# install.sh --undo MANIFEST: removes what MANIFEST lists, but no folder that holds something else.
#
# From the environment: PREFIX, and where they differ from its usual folders BINDIR, LIBDIR, INCLUDEDIR, DATADIR, MANDIR,
# DOCDIR; DESTDIR for packagers.
set -eu

if [ "$1" = --undo ]; then
    [ -e "$2" ] || { echo "packaging/install.sh: $2 is not there: nothing was installed from this tree" >&2; exit 1; }
    while IFS= read -r placed; do
        case $placed in
        */) rmdir "$placed" 2>/dev/null || true ;;
        *) rm -f "$placed" ;;
        esac
    done <"$2"
    rm -f "$2"
    exit 0
fi

built=$(cd "$1" && pwd)
mkdir -p "$(dirname "$2")"
manifest=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
cd "$(dirname "$0")/.."

: "${PREFIX:=/usr/local}"
case $PREFIX in
/*) ;;
*) echo "packaging/install.sh: PREFIX=$PREFIX has to begin with /" >&2; exit 1 ;;
esac
: "${BINDIR:=$PREFIX/bin}" "${LIBDIR:=$PREFIX/lib}" "${INCLUDEDIR:=$PREFIX/include}" "${DATADIR:=$PREFIX/share}"
: "${MANDIR:=$DATADIR/man}" "${DOCDIR:=$DATADIR/doc/trihop}"
root=${DESTDIR:-}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
soname=$(sed -n 's/^soname := //p' Makefile)
# What a program needs that links the static library: what Rust's standard library calls.
private="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"

new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

# Folders of an earlier installation from this tree are still ours.
touch "$new/folders"
[ ! -e "$manifest" ] || sed -n '/\/$/p' "$manifest" >"$new/folders"

make_folder() { # FOLDER
    [ ! -d "$1" ] || return 0
    make_folder "$(dirname "$1")"
    install -d -m 755 "$1"
    { echo "$1/"; cat "$new/folders"; } >"$new/more"
    mv "$new/more" "$new/folders"
}

place() { # MODE SOURCE TARGET
    make_folder "$(dirname "$root$3")"
    install -m "$1" "$2" "$root$3"
    echo "$root$3" >>"$new/manifest"
}

stripped() { # WHAT BINARY: a copy without what only debuggers read
    strip "--strip-$1" -o "$new/stripped" "$2"
    echo "$new/stripped"
}

link() { # TO NAME
    ln -sf "$1" "$root$2"
    echo "$root$2" >>"$new/manifest"
}

fill() { # TEMPLATE TARGET [VERSION OF THE INTERFACE]
    sed -e "s|@VERSION@|$version|g" -e "s|@SONAME@|$soname|g" -e "s|@PREFIX@|$PREFIX|g" \
        -e "s|@LIBDIR@|$(below "$LIBDIR")|g" -e "s|@INCLUDEDIR@|$(below "$INCLUDEDIR")|g" \
        -e "s|@LIBDIR_TO_INCLUDEDIR@|$(realpath -m --relative-to="$LIBDIR" "$INCLUDEDIR")|g" \
        -e "s|@LIBDIR_WHOLE@|$LIBDIR|g" -e "s|@INCLUDEDIR_WHOLE@|$INCLUDEDIR|g" -e "s|@BINDIR@|$BINDIR|g" \
        -e "s|@DATADIR@|$DATADIR|g" -e "s|@MANDIR@|$MANDIR|g" \
        -e "s|@LIBS_PRIVATE@|$private|g" -e "s|@INTERFACE@|${3:-}|g" "packaging/$1" >"$new/filled"
    place 644 "$new/filled" "$2"
}

below() { # FOLDER, as pkg-config likes it
    case $1 in
    "$PREFIX"/*) echo "\${prefix}${1#"$PREFIX"}" ;;
    *) echo "$1" ;;
    esac
}

place 755 "$(stripped all "$built/trihop")" "$BINDIR/trihop"
place 644 "$(stripped unneeded "$built/libtrihop.so")" "$LIBDIR/libtrihop.so.$version"
link "libtrihop.so.$version" "$LIBDIR/$soname"
link "$soname" "$LIBDIR/libtrihop.so"
place 644 "$(stripped debug "$built/libtrihop.a")" "$LIBDIR/libtrihop.a"
(cd include && find . -name '*.h' -type f -o -name '*.hpp' -type f) >"$new/headers"
while IFS= read -r header; do
    place 644 "include/$header" "$INCLUDEDIR/${header#./}"
done <"$new/headers"
fill trihop.pc.in "$LIBDIR/pkgconfig/trihop.pc"
fill TrihopConfig.cmake.in "$LIBDIR/cmake/Trihop/TrihopConfig.cmake"
fill TrihopConfigVersion.cmake.in "$LIBDIR/cmake/Trihop/TrihopConfigVersion.cmake"
# In a prefix of their own, which nobody searches who does not ask for it: a real mercury is never shadowed.
deltafs=$LIBDIR/trihop/deltafs/cmake
fill deltafs/trihop-deltafs.cmake.in "$deltafs/trihop-deltafs.cmake"
for package in mercury:2.4.1 mercury-progressor:1.0.0 deltafs-nexus:1.0.0 deltafs-shuffle:1.0.0; do
    name=${package%:*}
    fill "deltafs/$name-config.cmake.in" "$deltafs/$name/$name-config.cmake"
    fill deltafs/config-version.cmake.in "$deltafs/$name/$name-config-version.cmake" "${package#*:}"
done
fill modulefile.in "$DATADIR/trihop/modulefiles/trihop/$version"
"$built/trihop" man "$new/texts"
for page in "$new"/texts/man?/*; do
    place 644 "$page" "$MANDIR/${page#"$new/texts/"}"
done
place 644 packaging/trihop.3 "$MANDIR/man3/trihop.3"
place 644 "$new/texts/completions/trihop.bash" "$DATADIR/bash-completion/completions/trihop"
place 644 "$new/texts/completions/_trihop" "$DATADIR/zsh/site-functions/_trihop"
place 644 "$new/texts/completions/trihop.fish" "$DATADIR/fish/vendor_completions.d/trihop.fish"
# Built by the user, for one MPI or another.
for source in Makefile alltoall.c job.c blocks.c bench.c door.h trihop_alltoall.h; do
    place 644 "doors/mpi/$source" "$DATADIR/trihop/doors/mpi/$source"
done
for text in README.md CHANGELOG.md LICENSE-BSD-3-Clause LICENSE-MIT docs/*; do
    place 644 "$text" "$DOCDIR/$text"
done
cat "$new/folders" >>"$new/manifest"
mv "$new/manifest" "$manifest"
