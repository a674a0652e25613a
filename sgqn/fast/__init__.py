"""What makes the GPU path fast: captured updates and fused kernels. Nothing outside knows how."""
