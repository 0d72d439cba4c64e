"""Partitions a CSV file by the values of its column `key`: polars.py INPUT OUT."""

import sys

# This script has the name of the package.
sys.path.pop(0)
import polars

source, out = sys.argv[1:]
# Records keep their text.
records = polars.scan_csv(source, infer_schema=False)
by_value = polars.PartitionBy(out, key="key") if hasattr(polars, "PartitionBy") else polars.PartitionByKey(out, by="key")
records.sink_csv(by_value, mkdir=True, maintain_order=False)
