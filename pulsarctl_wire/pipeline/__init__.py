"""Any amount of captures as one frames table, by as many processes as there are. See docs/architecture.md.

    plan     inputs -> splits: whole files, or parts of them
    decode   a split alone, without what came before it  -> a draft of its rows, and its edges
    stitch   the edges of all splits, in order           -> what is to be mended in each draft
    finish   a draft -> Parquet files

Nothing here knows Spark: whatever runs functions in other processes may run these.
"""
