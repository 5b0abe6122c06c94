"""The service: routes, access, events, metrics, and the client of all that."""
