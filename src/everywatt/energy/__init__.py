"""From ticks to joules: publications, integration that follows the sensor, and how sure the result is."""
