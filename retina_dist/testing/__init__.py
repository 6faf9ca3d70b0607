"""Contracts that an extension from outside the package runs to prove itself."""
