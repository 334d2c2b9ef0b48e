"""What the server shows and receives: pages of an application, URLs, signatures of webhooks."""
