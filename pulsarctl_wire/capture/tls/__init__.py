"""TLS with its secrets: records of captured connections are opened with the secrets of NSS key logs.

Pure but for `KeyLogFile`: bytes in, plain bytes and facts out. `cryptography` is only imported when a record
is opened, or a certificate is read.
"""
