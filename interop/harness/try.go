package harness

import "context"

// TryAsk is Ask for a goroutine that is not the test's own: a transport failure is returned.
func (c *Client) TryAsk(ctx context.Context, r Request) (Answer, error) { return c.ask(ctx, r) }
