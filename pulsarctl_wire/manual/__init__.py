"""The manual of the protocol, for `pwire explain`: what commands, fields, errors and versions mean.

The other modules hold only what no table has: numbers, types, directions and answers come from `wire`.
"""
