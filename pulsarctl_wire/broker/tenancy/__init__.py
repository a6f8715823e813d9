"""Tenants, namespaces, the policies that apply, and who may do what."""
