"""Settings: typed, frozen, one place. Owns defaults and where values come from; imports no other room."""
