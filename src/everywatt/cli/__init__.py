"""One module a verb: parsing, composing, printing. Nothing here measures."""
