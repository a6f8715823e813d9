"""The words of the broker's core: names, settings, refusals, the scheduler. No state of a broker."""
