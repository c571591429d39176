"""The store on PostgreSQL: several relays share one database (`store.url`)."""
