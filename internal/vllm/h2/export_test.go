package h2

// SpendIDs has the connections that take streams be at the end of their stream ids.
func (p *Pool) SpendIDs() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.ready {
		c.mu.Lock()
		c.nextID = lastID + 1
		c.mu.Unlock()
	}
}
