"""What several verbs share: options, output, progress."""
