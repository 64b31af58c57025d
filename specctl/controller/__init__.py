"""The pure decision core, and the loop that joins the stages."""
