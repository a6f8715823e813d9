"""From splits to rows: each split decoded alone, and the edges of all stitched together."""
