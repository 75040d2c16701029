"""The HTTP surface, one module a group of routes; each builds its handlers around a service."""
