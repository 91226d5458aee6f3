"""The command line: one thin file a verb, imported when the verb is used."""
