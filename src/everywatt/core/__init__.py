"""Values, units, clocks, errors and configuration. Imports nothing of everywatt's other rooms, and no numpy."""
