"""Checks brokers and clients by cases: each makes one of them do something, and judges what it does.

    basics/        what cases are made of: probes, frames, checks
    connecting/, discovering/, producing/, consuming/    the cases for brokers, by topic
    clients/       the cases for clients, and the brokers that they need
    fuzzing/       random sessions for brokers
    catalog.py     all cases by id
    survey.py      finds out which settings a broker has
    runner.py      runs cases against a broker or a client
    verdict.py     the outcome of a case
    report.py      the outcomes of a run as plain values

A case for brokers is an async function of a `Target`. Its id is `TOPIC/NAME`, as in
`subscribe/type_exclusive`: its topic is its module's name up to the first underscore. Its docstring is the
requirement: first what is sent, then `Expected:` and `Source:`. It talks to the broker by probes (raw
connections), and never sleeps by itself: `settle` gives the broker time to send what it is going to send,
`advance` lets seconds pass. So the same cases run against an embedded broker whose clock is moved.
"""
