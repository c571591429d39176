"""rlproxy as a service of one person: started at login, started again when it fails, ended gently."""
