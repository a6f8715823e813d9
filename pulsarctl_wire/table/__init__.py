"""The tables: a row per frame, gap and connection, in Arrow batches and Parquet files. See docs/tables.md."""
