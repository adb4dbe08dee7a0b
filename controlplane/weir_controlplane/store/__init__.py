"""Truth: the database schema, its migrations, its clock and its transactions.

Nothing here knows HTTP, files or what a batch means.
"""
