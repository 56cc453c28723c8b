"""Who can read an object and whose word it is: feeds, private delivery, groups, and signatures."""
