"""`veen id`: principals, devices, organizations, groups, roles, handles."""
