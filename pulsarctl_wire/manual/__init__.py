"""The manual of the protocol, for `pwire explain`: what commands, fields, errors and versions mean.

Its texts (*.txt) hold only what no table has: numbers, types, directions and answers come from `wire`, the
meanings of errors from wire/server_errors.py. Sources of what is not in Pulsar's documents: a broker 4.0.8
and official clients, as observed.
"""
