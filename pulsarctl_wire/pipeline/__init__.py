"""Makes one frames table from any number of captures, in many processes. See docs/architecture.md.

    plan     inputs -> splits: whole files, or parts of them
    decode   a split, without knowing what came before it  -> a draft of its rows, and its edges
    stitch   the edges of all splits, in order             -> fixups for each draft
    finish   a draft and its fixups -> Parquet files

Nothing here depends on Spark: anything that runs functions in other processes can run these.
"""
