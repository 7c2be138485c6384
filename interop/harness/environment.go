package harness

// Setenv adds NAME=value settings to what every program of the deployment that is started from now on gets. Of two
// settings of a name the later one counts.
func (c *Cluster) Setenv(settings ...string) { c.env = append(c.env, settings...) }
