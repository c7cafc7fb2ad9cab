"""What people read: results and jobs as text."""
