#!/bin/sh
# deb.sh FOLDER: builds a Debian package of this tree in FOLDER, by `make install` below a root of its own. Needs no root and
# no debhelper: dpkg-deb, and dpkg-shlibdeps for what the binaries need. DEBFULLNAME and DEBEMAIL say who maintains it.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
soname=$(sed -n 's/^soname := //p' Makefile)
architecture=$(dpkg --print-architecture)
triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
maintainer="${DEBFULLNAME:-The trihop developers} <${DEBEMAIL:-trihop@localhost}>"

root=$folder/root
rm -rf "$root" "$folder/installed" "$folder"/trihop_*.deb
unset BINDIR INCLUDEDIR DATADIR MANDIR DOCDIR
# A list of its own: `make uninstall` is to remove what was installed for use, if anything was.
make PREFIX=/usr LIBDIR="/usr/lib/$triplet" DESTDIR="$root" MANIFEST="$folder/installed" install
# The age of what is packed. No source has a date in it, and cargo would build all C anew for another one.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH

doc=$root/usr/share/doc/trihop
# Debian has one text of what may be done, and changes packed.
{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    echo
    echo "Files: *"
    echo "Copyright: the trihop developers"
    echo "License: BSD-3-Clause or Expat"
    for licence in BSD-3-Clause:LICENSE-BSD-3-Clause Expat:LICENSE-MIT; do
        echo
        echo "License: ${licence%%:*}"
        sed -e 's/^$/./' -e 's/^/ /' "${licence#*:}"
    done
} >"$doc/copyright"
rm "$doc/LICENSE-BSD-3-Clause" "$doc/LICENSE-MIT"
mv "$doc/CHANGELOG.md" "$doc/changelog"
cat >"$doc/changelog.Debian" <<CHANGES
trihop ($version-1) unstable; urgency=medium

  * Built from its own tree by \`make deb\`; changelog.gz has what changed.

 -- $maintainer  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
CHANGES
gzip -9n "$doc/changelog.Debian"
install -D -m 644 packaging/lintian-overrides "$root/usr/share/lintian/overrides/trihop"
# Folders that Debian's own tools search.
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
gzip -9n "$doc/changelog"

mkdir -p "$folder/debian" "$root/DEBIAN"
printf 'Source: trihop\n' >"$folder/debian/control"
depends=$(cd "$folder" && dpkg-shlibdeps -O -l"$root/usr/lib/$triplet" "$root/usr/bin/trihop" \
    "$root/usr/lib/$triplet/$soname" | sed -n 's/^shlibs:Depends=//p')
cat >"$root/DEBIAN/control" <<CONTROL
Package: trihop
Version: $version-1
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -ks "$root" | cut -f1)
Depends: $depends
Recommends: libfabric1 (>= 1.17)
Section: libs
Priority: optional
Description: many-to-many messaging for HPC jobs
 Any rank of a job sends small messages to any rank, over shared-memory rings
 inside a node and libfabric between nodes. This package has the library for C
 and C++, shared and static, its headers and documents, and the command.
CONTROL
# With the release that each name came with, so that a program depends on no later one than it needs.
install -m 644 packaging/libtrihop.symbols "$root/DEBIAN/symbols"
echo "libtrihop ${soname##*.} trihop (>= $version)" >"$root/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
package=$folder/trihop_$version-1_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
rm -rf "$root" "$folder/debian" "$folder/installed"
echo "$package"
