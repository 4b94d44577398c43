"""The Grafana dashboards of fleets, services and the autoscaler, as values: boards of rows of panels of queries."""
