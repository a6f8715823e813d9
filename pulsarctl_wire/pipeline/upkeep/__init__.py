"""What is done to a table that exists: merging files, moving rows, deleting old ones."""
