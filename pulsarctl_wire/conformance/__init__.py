"""Checks brokers: cases that each ask a broker for something, and judge what it does.

    basics/        what cases are made of: probes, frames, checks of what came
    connecting/, discovering/, producing/, consuming/    the cases, by topic
    catalog.py     all cases by id
    runner.py      runs cases against a broker
    report.py      what came of it, as JSON, JUnit's XML and Markdown

A case is an async function of a `Target`. Its id is its topic, which is its module's name up to an underscore
or the end, and its own name: `subscribe/type_exclusive`. Its docstring is the requirement: first what is
sent, then `Expected:` and `Source:`. It talks to the broker by probes (raw connections), and never waits for
time by itself: `settle` gives the broker time to send what it is going to send, `advance` lets seconds pass.
So the same cases run against an embedded broker whose clock is moved.
"""
