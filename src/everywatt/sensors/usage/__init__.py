"""Who uses the machine: processes, cgroups, containers, hardware activity."""
