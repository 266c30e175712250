"""Adapters to other packages. Each module needs the package that it adapts to, and is imported only when it is used."""
