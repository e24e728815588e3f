"""Questions that the theorems leave open, each settled by numbers, a certificate or an argument."""
