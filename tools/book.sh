#!/bin/sh
# book.sh FOLDER: makes the documents one book in FOLDER/docs, by mdBook, and puts beside it what its pages link to outside
# of docs/: examples and sources, as they are.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
rm -rf "$folder/docs"
mdbook build --dest-dir "$folder/docs" docs
# Markdown outside of docs/ would be called .html by mdBook, and has no page.
grep -oh '](\.\./[^)#]*' docs/*.md | cut -c 6- | sort -u | while read -r linked; do
    case $linked in
    *.md) echo "tools/book.sh: docs/ links to $linked, which has no page in the book" >&2; exit 1 ;;
    esac
    mkdir -p "$folder/$(dirname "$linked")"
    cp -r "$linked" "$folder/$(dirname "$linked")/"
done
cat >"$folder/index.html" <<'PAGE'
<!DOCTYPE html><meta charset=utf-8><title>trihop</title><meta http-equiv=refresh content="0; url=docs/index.html">
<a href="docs/index.html">The documents of trihop</a>
PAGE
# Each link of each page leads to a file.
python3 - "$folder" <<'CHECK'
import html.parser, pathlib, sys, urllib.parse

folder = pathlib.Path(sys.argv[1])
broken = []

class Links(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.page = page

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name not in ("href", "src") or not value:
                continue
            parts = urllib.parse.urlsplit(value)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            target = self.page.parent / urllib.parse.unquote(parts.path)
            if not target.exists():
                broken.append(f"{self.page.relative_to(folder)}: {value}")

for page in sorted(folder.glob("docs/*.html")):
    # Its links begin at the root of a web server.
    if page.name != "404.html":
        Links(page).feed(page.read_text())
if broken:
    sys.exit("tools/book.sh: links to nothing: " + ", ".join(broken))
CHECK
echo "$folder/index.html"
