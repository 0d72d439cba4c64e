# A real graph for the example `bfs`: which packages need which, by number, of a Cargo.lock.
# awk -f examples/packages.awk Cargo.lock >packages.txt

function number(name) {
    gsub(/[",]/, "", name)
    if (!(name in numbers)) {
        numbers[name] = count++
        print "# " numbers[name] " is " name
    }
    return numbers[name]
}
/^name = / { package = number($3) }
/^ "/ {
    needed = number($1)
    print package, needed
}
