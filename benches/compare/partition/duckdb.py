"""Partitions a CSV file by the values of its column `key`: duckdb.py INPUT OUT."""

import sys

# This script has the name of the package.
sys.path.pop(0)
import duckdb

source, out = sys.argv[1:]
connection = duckdb.connect()
# Records keep their text and come as they arrive, as those of others do.
connection.execute("SET preserve_insertion_order = false")
connection.execute(
    f"COPY (SELECT * FROM read_csv('{source}', all_varchar = true, header = true)) TO '{out}' (FORMAT csv, HEADER, PARTITION_BY (key))"
)
