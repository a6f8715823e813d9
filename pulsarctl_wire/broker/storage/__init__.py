"""What is stored of topics and subscriptions: the journal, logs, cursors, compaction, transactions."""
