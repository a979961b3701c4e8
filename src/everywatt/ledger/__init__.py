"""From joules to owners: who used what, what idled, and the proof that it adds up."""
