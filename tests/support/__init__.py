"""What several tests share: servers, clusters, factories, probes."""
