#!/bin/sh
# link.sh ARGUMENT...: what rustc links the shared C library by, after the names that the library exports got versions: CC,
# else the linker that CARGO_TARGET_<triple>_LINKER gives cargo, else cc. What a file of cargo's configuration names as
# `linker` nobody tells this script: give it as CC. Arguments of `rustflags` (-C link-arg=-fuse-ld=lld) come here as ever.
#
# rustc has a list of these names, as a version script without a version, beside which the linker takes no other one. So
# versions are put into it: those of packaging/libtrihop.symbols, and for a name that is not there that of this release.
set -eu
packaging=$(dirname "$0")
script=
for argument in "$@"; do
    case $argument in
    -Wl,--version-script=*) script=${argument#-Wl,--version-script=} ;;
    esac
done
if [ -z "$script" ] || ! grep -q '^ *global:' "$script"; then
    echo "packaging/link.sh: rustc gives the linker no list of names to export, so they would have no version" >&2
    exit 1
fi
release=$(sed -n 's/^version = "\([0-9]*\.[0-9]*\)\..*"$/TRIHOP_\1/p' "$packaging/../Cargo.toml" | head -n 1)
# VERSION NAME, of each name that is exported.
awk -v release="$release" '
    NR == FNR { if (split($1, of, "@") == 2) version[of[1]] = of[2]; next }
    /^ *(global|local):/ { is_global = /global/; next }
    is_global && sub(/;.*/, "") && sub(/^ */, "") && $0 != "" { print ($0 in version ? version[$0] : release), $0 }
' "$packaging/libtrihop.symbols" "$script" | sort -V >"$script.versions"
# Each version builds on the one before, and the first hides what has none.
awk '
    function finish() { if (version != "") print hidden "}" before ";"; before = version == "" ? "" : " " version; hidden = "" }
    BEGIN { hidden = "  local:\n    *;\n" }
    $1 != version { if (version != "") finish(); version = $1; print version " {\n  global:" }
    { print "    " $2 ";" }
    END { finish() }
' "$script.versions" >"$script"
triple=${CARGO_BUILD_TARGET:-$("${RUSTC:-rustc}" -vV | sed -n 's/^host: //p')}
variable=CARGO_TARGET_$(printf %s "$triple" | tr 'a-z.-' 'A-Z__')_LINKER
linker=${CC:-$(printenv "$variable" || true)}
linker=${linker:-cc}
# shellcheck disable=SC2086 # a compiler and options of it
exec $linker "$@"
